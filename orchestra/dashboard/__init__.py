"""A web page about runs: curves, actors, hosts, logs and configurations, live."""
