"""Real tensors and models that meet meta tensors.

``lifting`` makes a constant of what is only read, ``lending`` puts leaves that want
gradients on meta until the cell ends, which ``loans`` exchanges; ``liftable`` tells
them apart, ``real_names`` names them in notes and errors.

May import all other rooms of ``recording``, ``errors``, ``torch_private``, ``trace``.
Read ``lifting`` first.
"""
