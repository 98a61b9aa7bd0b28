"""ARFF: header, dense and sparse records, Mulan's list of labels."""
