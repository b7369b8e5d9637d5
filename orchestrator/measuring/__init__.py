"""Measuring a running server from the client's side: what is asked, how load is put on it, what the replies say."""
