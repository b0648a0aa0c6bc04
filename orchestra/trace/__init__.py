"""What every actor of a run was told and did: recorded, kept in files, asked about. `docs/traces.md` has the format."""
