"""The sandbox's tests on other kernels than that of this machine: Debian's, in a virtual machine."""
