"""Servers as processes: started, watched, and proven gone.  Not here: what a server is told or asked (engines)."""
