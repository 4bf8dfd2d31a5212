"""Content-addressed blobs: resumable part files on local disk, finished blobs in an object store."""
