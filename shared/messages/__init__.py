"""The messages of the wire, one module per conversation. `docs/wire.md` shows them all."""
