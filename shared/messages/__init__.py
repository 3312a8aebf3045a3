"""The messages of the wire protocol, by topic. `docs/wire.md` lists all of them."""
