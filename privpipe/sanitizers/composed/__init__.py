"""Maps made of maps: a `chain` applies several, a `standardiser` goes before a method's own."""
