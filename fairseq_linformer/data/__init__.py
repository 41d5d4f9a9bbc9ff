"""Raw text, GLUE and IMDB into fairseq's binary datasets."""
