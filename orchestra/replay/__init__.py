"""The replay debugger: runs one recorded actor again, of its real class, and compares it with its record."""
