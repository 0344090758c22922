"""The seam to SGLang: the only package that imports it.

One module per room that needs SGLang's internals. Everything that is overridden or relied upon is
listed in `signatures` and checked before a server starts, so a moved seam is an error at start and
not a wrong token later.
"""
