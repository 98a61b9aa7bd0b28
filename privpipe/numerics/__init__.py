"""Pure arithmetic: ndarrays in, new ndarrays out. See DESIGN.md."""
