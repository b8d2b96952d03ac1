"""Every HTTP route, a module for each subject; `app.py` includes the router of each."""
