"""The actor model: messages, mailboxes, cells and supervision. Knows neither sockets nor traces."""
