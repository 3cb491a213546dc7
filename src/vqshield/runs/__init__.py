"""The engine of resumable work.

target      a classifier and the images that it classifies
study       what is measured of a target, cut into cells; each cell gives records
manifests   the complete settings of the records in a folder, so that two settings never mix
records     the folder itself, safe against crashes, restarts and second processes
adversarial images found against bare classifiers, kept for all studies that need the same ones
executors/  where cells are measured: in this process, in several, on a cluster
"""
