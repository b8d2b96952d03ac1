"""The process boundary, both sides: `client` and `pool` for a front end, `worker` and `process` behind it."""
