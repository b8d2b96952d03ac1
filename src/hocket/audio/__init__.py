"""Audio and codes outside a model: files, formats, resampling, and recordings as references.

Others use `io` (decode and encode audio), `reference` (prepare a recording for a codec),
`codes_file` (codes on disk) and `files` (atomic writes). Nothing here knows a model.
"""
