"""The operations that models run on a device.

Models call `ops` and pass it `types`; the runners fill those types. `ops` picks a column by device:
`reference` (plain PyTorch, the definition), `cpu` (faster forms of some references) or `gpu`
(Triton kernels). Kernels import nothing of models.
"""
