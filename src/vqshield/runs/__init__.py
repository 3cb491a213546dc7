"""The engine of resumable work.

target      a classifier and the images it is asked about
study       what is measured of a target, cut into cells; each cell gives records
manifests   what the records in a folder are of, in full, so that two settings never mix
records     the folder itself, safe against crashes, restarts and second processes
adversarial images found against bare classifiers, kept for all studies that need the same ones
executors/  where cells are measured: in this process, in several, on a cluster
"""
