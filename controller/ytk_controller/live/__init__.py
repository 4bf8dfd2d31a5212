"""The running side: sessions of agents, watchers, log files, dispatcher and reaper."""
