"""Tables, figures and pages from values: SVG, PNG, HTML and text out, nothing read.

`style` is the one look of all figures, `tables` writes numbers for people, `page` joins them into
one self-contained page. What is said is in ``templates``: whole sentences (`audit_text.say`), and
sections with their tables (`release_sections.write_sections`).
"""
