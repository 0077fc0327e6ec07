"""A certificate for localhost that signs itself: certificate.py CERTIFICATE KEY."""

import datetime
import sys

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

key = ec.generate_private_key(ec.SECP256R1())
name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
now = datetime.datetime.now(datetime.timezone.utc)
day = datetime.timedelta(days=1)
builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
with open(sys.argv[1], "wb") as file:
    file.write(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
with open(sys.argv[2], "wb") as file:
    form = serialization.PrivateFormat.PKCS8
    file.write(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
