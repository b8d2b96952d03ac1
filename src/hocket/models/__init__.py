"""The models: families of talkers and codecs, and the layers that they share.

Others use `registry` (from a checkpoint's folder to a plan or a loaded model), `family` (what a
family hands out), `talker` and `codec` (what the engine runs), `sampling`, and the state in
`layers`. A family is one folder, which only the registry names; see docs/families.md.
"""
