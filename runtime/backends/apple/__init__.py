"""What the engines of Apple's runtimes share: static widths, chains of packages, caches that the host keeps."""
