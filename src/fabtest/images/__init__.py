"""Container images of a lab: ``fabtest/sonic-lite`` and ``fabtest/host``, built here, and docker-sonic-vs, loaded.

Each folder below is the build context of one image. ``build`` makes them, once per content.
"""
