"""One model on one device, one row for each request. `engine.Engine` is its face; `build` makes its parts."""
