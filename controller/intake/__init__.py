"""Messages of clients: decoded, validated, passed to the request machine."""
