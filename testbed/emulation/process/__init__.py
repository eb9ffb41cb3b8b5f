"""Workers and other programs in the hosts: started, limited, talked to, ended."""
