"""The WebSocket: text comes in piece by piece while audio goes out (docs/websocket.md).

`session` holds the route and one client's state, `messages` the client's messages, `dialects` the
names of our events, `connection` both directions of the socket.
"""
