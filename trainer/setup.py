"""The native digests (gradtap/native.py) are built where there is a compiler; without one the package does without."""

from setuptools import Extension, setup

setup(ext_modules=[Extension("gradtap._block_digest", ["block_digest.c"], optional=True, extra_compile_args=["-O3"])])
