"""Pages that kmha writes: one HTML file each, which asks nobody for anything."""
