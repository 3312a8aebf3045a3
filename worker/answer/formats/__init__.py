"""How families of models write their tool calls and their reasoning."""
