"""An empty stand-in for soundfile, which SGLang imports for speech models and these tests never serve."""
