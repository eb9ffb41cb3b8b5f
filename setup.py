"""The delay line's inner loop in C, where there is a compiler; without one, the loop in Python takes over."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "testbed.emulation.delay._line",
            ["testbed/emulation/delay/line.c"],
            libraries=["m", "pthread"],
            extra_compile_args=["-O2"],
            optional=True,
        )
    ]
)
