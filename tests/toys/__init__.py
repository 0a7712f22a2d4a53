"""Extensions as other people would write them: small, and outside the packages."""
