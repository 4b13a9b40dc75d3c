# First `cargo xtask dist`, then `docker build -t onward .`
FROM scratch
COPY dist/onward /onward
VOLUME /data
EXPOSE 7400
HEALTHCHECK CMD ["/onward", "probe", "--url", "http://127.0.0.1:7400/readyz"]
# Beyond loopback it wants TLS and tokens: give it a certificate, or listen on another address.
ENTRYPOINT ["/onward"]
CMD ["up", "--data", "/data", "--slots", "0"]
