"""What is drawn: `figures` turns data into plotly figures; no lower floor imports plotly."""
