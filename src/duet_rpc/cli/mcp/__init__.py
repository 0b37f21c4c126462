"""`duet-rpc mcp`: a service for agents."""
