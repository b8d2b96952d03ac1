"""Model families, one folder each; `registry` finds them by name, `talker`, `codec` and `family` are their seam."""
