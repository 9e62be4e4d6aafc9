"""The Dockerfile built and run where no Docker engine is: Debian's buildah, chroot isolation, Linux namespaces."""
