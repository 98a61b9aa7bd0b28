"""Tables, figures and pages from values: SVG, PNG, HTML and text out, nothing read.

`style` is the one look of all figures, `figures` draws them, `tables` writes numbers for people,
`page` joins them into one self-contained page.
"""
