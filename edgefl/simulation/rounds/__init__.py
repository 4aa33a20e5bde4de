"""How a round goes: with a cohort that is waited for, or with flights that outlive rounds."""
