"""A fuzzer of bytes: what a client with an ordinary key can send, from bare sockets, to a running
cluster, while another client is served (docs/fuzz.md)."""
