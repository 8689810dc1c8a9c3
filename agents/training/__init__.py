"""Scripts that make what ships: the weights of the spam model and the sample mail.

They need the extra `train` and a corpus file; nothing at run time imports them.
"""
