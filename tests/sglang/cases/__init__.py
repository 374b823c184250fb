"""The cases with real SGLang, a file for each set of servers that cases share."""
