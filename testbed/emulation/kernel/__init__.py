"""What asks the kernel: names of its objects, namespaces, netlink, batches of ip and tc, processors."""
