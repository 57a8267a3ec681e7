"""Run folder -> answers; reads files only, never live objects."""
