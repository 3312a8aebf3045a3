"""The web page of the gateway: static files, which use its HTTP API."""
