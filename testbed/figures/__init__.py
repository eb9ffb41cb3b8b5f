"""Figures, each described once with plotly: drawn by a browser in pages, by matplotlib in PNG, SVG and PDF files."""
