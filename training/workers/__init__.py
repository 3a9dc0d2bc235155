"""Several processes, perhaps on several machines, that train one model together."""
